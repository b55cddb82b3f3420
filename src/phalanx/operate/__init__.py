"""What acts: the control plane, the engines that get agents onto nodes, and the agents. Never imports job."""

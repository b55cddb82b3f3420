"""What runs inside a job; never imports operate: they meet at the agent's socket."""

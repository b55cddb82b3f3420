"""How daemons get onto machines: this one (`local`) today. Starts and ends processes; never imports control or agent."""

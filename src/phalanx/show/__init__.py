"""What people see: knows only core and client."""

"""Scripts that start a federation, and make what it needs to be a safe one."""

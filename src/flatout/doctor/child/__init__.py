"""What runs inside the script's own processes."""

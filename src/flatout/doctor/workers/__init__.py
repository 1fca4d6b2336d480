"""What is counted where samples are made, in worker processes or in the script's own."""

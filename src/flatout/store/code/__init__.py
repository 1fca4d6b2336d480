"""What a transform is made of: the code behind an object and the values that it carries."""

"""Where observation hooks into torch: class-level patches that leave results alone."""

"""The ready trainings, one a file: samples, model, loss, augmentation, and the path they started from."""

"""Why a training is slow, how much there is to win, what would cure it, and the proof."""

"""The model of what was seen of a job, its file, and how it is merged and folded."""

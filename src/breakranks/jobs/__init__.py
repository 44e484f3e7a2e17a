"""What a job is: targets, launchers, finding jobs and missing ranks."""

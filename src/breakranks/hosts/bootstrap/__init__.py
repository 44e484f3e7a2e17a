"""What is needed to run our agent on a host that has nothing of ours: the command, stage one, and what is sent."""

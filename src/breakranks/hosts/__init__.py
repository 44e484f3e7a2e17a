"""The same on other hosts: transports, bootstrap, the agent of a host and its controller."""

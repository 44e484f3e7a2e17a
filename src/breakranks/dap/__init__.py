"""The bridge for clients of the Debug Adapter Protocol."""

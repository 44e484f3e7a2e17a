"""What the flight recorder's histories say: who has not come, who called something else, who waits in a ring."""

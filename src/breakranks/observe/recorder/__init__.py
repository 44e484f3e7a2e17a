"""Reading what torch's flight recorder wrote: bytes of a dump, whoever made it, to typed values."""

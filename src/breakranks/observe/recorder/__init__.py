"""Read dumps of torch's flight recorder: from untrusted bytes to typed values."""

"""What tests of several kinds share: processes that end with their test, waiting, stalls."""

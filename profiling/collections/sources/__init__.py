"""Libraries whose networks are collected; they are only imported to rebuild a collection."""

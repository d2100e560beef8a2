"""Libraries whose networks are collected; they are imported when a collection is rebuilt, and never otherwise."""

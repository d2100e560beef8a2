"""The dashboard: server-rendered pages without scripts, usable offline and by keyboard, in light and dark
mode."""

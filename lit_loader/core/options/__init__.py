"""The options of a loader, and the rules by which they are checked."""

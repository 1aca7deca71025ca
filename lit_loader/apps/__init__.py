"""Programs around the loader, and the plugin that shows its configuration to Hydra."""

"""The loader in a Lightning Trainer: data module, callbacks, monitor."""

"""The recipe "images": a folder of JPEG files, decoded and augmented in the workers."""

from digits.needs import needs

needs("images", "PIL")

"""The recipe "webdataset": tar shards, read with the webdataset library in the workers."""

from digits.needs import needs

needs("webdataset", "PIL", "webdataset")

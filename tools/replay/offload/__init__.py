"""The offloading benchmark: copies between a device's pool and host memory."""

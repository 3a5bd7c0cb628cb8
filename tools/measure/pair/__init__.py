"""A prefill and a decode server over NIXL, for paged and for tagma in turn."""

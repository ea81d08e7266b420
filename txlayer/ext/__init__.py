"""txlayer in web frameworks: what a service would otherwise copy. Each module needs its framework, which the service has."""

"""The interfaces at which the parts of the data plane meet, with their laws."""

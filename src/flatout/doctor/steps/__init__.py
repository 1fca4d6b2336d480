"""From a trace of events to steps and the parts that each spent its time on."""

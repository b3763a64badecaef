"""How the store does: what is counted, noted and judged, for people and for their alarms."""

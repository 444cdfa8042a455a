"""The roles of the fleet. Each talks to the others by packets only."""

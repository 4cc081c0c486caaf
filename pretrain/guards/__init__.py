"""What watches over a run. Decisions are pure functions of what all ranks know, so that they decide alike."""

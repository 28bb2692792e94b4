"""How models write thinking and tool calls, and the way back to what they mean (spec 08 PAR)."""

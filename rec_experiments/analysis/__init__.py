"""Everything that reads finished runs: results, claims, regime, figures, report, watch."""

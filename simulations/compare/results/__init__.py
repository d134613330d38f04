"""What a comparison shows: results of runs, their means and pairs, tables and figures."""

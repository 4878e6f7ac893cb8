"""Models over whole data sets with Ray Data, one actor for each device."""

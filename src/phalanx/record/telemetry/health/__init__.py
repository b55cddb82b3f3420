"""Rules on what ranks measure: who is slower than its peers. Pure: records in, findings out; they decide nothing."""

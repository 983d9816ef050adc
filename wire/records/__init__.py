"""What must outlive a process: the privacy ledger and the transcripts of finished rounds."""

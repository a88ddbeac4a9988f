"""Traffic forecasting over many vehicle detectors with xLSTM and social pooling."""

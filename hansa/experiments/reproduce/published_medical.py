"""The figures that Manoel et al. (2023) print."""

# Table 3: perplexity of FL, CL, the silo's own model, and the base.
LANGUAGES = {
    "Italian": (5.63, 5.80, 6.32, 16.10),
    "French": (4.97, 4.94, 5.53, 13.13),
    "Spanish": (5.65, 5.81, 6.45, 17.28),
    "Portuguese": (5.85, 6.01, 6.91, 18.65),
    "English": (3.41, 3.51, 3.50, 32.83),
    "German": (7.10, 7.04, 7.74, 21.98),
    "Arabic": (8.36, 10.48, 10.81, 19.82),
    "Hebrew": (6.98, 9.44, 11.43, 19.30),
    "Russian": (6.07, 7.17, 7.34, 14.77),
}
# Table 4: F1 of FL and CL.
NER = {
    "BC5CDR": {"micro": (0.8913, 0.8917), "macro": (0.8917, 0.8920), "weighted": (0.8915, 0.8919)},
    "NCBI-disease": {"micro": (0.9287, 0.9370)},
    "i2b2-2009": {"micro": (0.9184, 0.9174), "macro": (0.8476, 0.8446), "weighted": (0.9170, 0.9155)},
}
TABLE_5 = {"NER (strict/type)": ["0.5415/0.6778", "0.6628/0.8118"], "Relation Extraction": ["0.8144", "0.8178"]}
# Table 6: masked accuracy of federated, personalised and interpolated models.
TABLE_6 = {
    "English": (0.6976, 0.6945, 0.6970),
    "French": (0.6404, 0.6491, 0.6510),
    "Spanish": (0.6183, 0.6286, 0.6279),
    "German": (0.5950, 0.6007, 0.6024),
    "Russian": (0.5876, 0.6054, 0.6043),
    "Portuguese": (0.6145, 0.6213, 0.6220),
    "Italian": (0.6194, 0.6288, 0.6279),
}
# Table 7: perplexity of FL and CL, mean and standard deviation over the test set cut in four.
TABLE_7 = {
    "Italian": ("5.61 ± 0.24", "5.98 ± 0.14"),
    "French": ("5.15 ± 0.10", "5.32 ± 0.05"),
    "Spanish": ("5.76 ± 0.16", "6.03 ± 0.20"),
    "Portuguese": ("6.00 ± 0.07", "6.16 ± 0.07"),
    "English": ("3.42 ± 0.01", "3.51 ± 0.02"),
    "German": ("7.31 ± 0.09", "7.22 ± 0.04"),
    "Arabic": ("8.57 ± 0.17", "10.60 ± 0.10"),
    "Hebrew": ("6.88 ± 0.12", "9.32 ± 0.10"),
    "Russian": ("6.21 ± 0.09", "7.05 ± 0.20"),
}

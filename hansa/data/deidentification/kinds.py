"""The types of personal details, the names that others use for them, and the names of the built-in finders."""

import re

BUILT_IN = ("rules", "lists")  # finders that execute no code and load no model that a settings file names
# Every type that a finder of ours gives. HOSPITAL: also other institutions; TOWN: also regions and countries.
TYPES = (
    "NAME", "DATE", "PHONE", "EMAIL", "URL", "ID", "ADDRESS", "TOWN", "HOSPITAL", "PROFESSION", "AGE", "RELATIVE",
)  # fmt: skip
# Names in Presidio, i2b2, CoNLL, OntoNotes and MEDDOCAN → ours.
KINDS = {
    "PERSON": "NAME", "PER": "NAME", "PATIENT": "NAME", "DOCTOR": "NAME", "STAFF": "NAME", "HCW": "NAME",
    "USERNAME": "NAME", "GIVENNAME": "NAME", "SURNAME": "NAME", "NOMBRE_SUJETO_ASISTENCIA": "NAME",
    "NOMBRE_PERSONAL_SANITARIO": "NAME",
    "DATE_TIME": "DATE", "DOB": "DATE", "TIME": "DATE", "FECHAS": "DATE",
    "PHONE_NUMBER": "PHONE", "TELEPHONENUM": "PHONE", "FAX": "PHONE", "NUMERO_TELEFONO": "PHONE", "NUMERO_FAX": "PHONE",
    "EMAIL_ADDRESS": "EMAIL", "CORREO_ELECTRONICO": "EMAIL",
    "LOCATION-OTHER": "TOWN", "LOCATION": "TOWN", "LOC": "TOWN", "GPE": "TOWN", "CITY": "TOWN", "STATE": "TOWN",
    "COUNTRY": "TOWN", "ZIP": "TOWN", "ZIPCODE": "TOWN", "TERRITORIO": "TOWN", "PAIS": "TOWN",
    "STREET": "ADDRESS", "STREET_ADDRESS": "ADDRESS", "BUILDINGNUM": "ADDRESS", "CALLE": "ADDRESS",
    "ORG": "HOSPITAL", "ORGANIZATION": "HOSPITAL", "VENDOR": "HOSPITAL", "HOSP": "HOSPITAL", "INSTITUCION": "HOSPITAL",
    "CENTRO_SALUD": "HOSPITAL",
    "IBAN_CODE": "ID", "US_SSN": "ID", "UK_NHS": "ID", "MEDICAL_LICENSE": "ID", "IDNUM": "ID", "MEDICALRECORD": "ID",
    "MRN": "ID", "SSN": "ID", "ACCOUNTNUM": "ID", "CREDITCARDNUMBER": "ID", "ID_SUJETO_ASISTENCIA": "ID",
    "ID_TITULACION_PERSONAL_SANITARIO": "ID", "ID_ASEGURAMIENTO": "ID", "ID_CONTACTO_ASISTENCIAL": "ID",
    "ID_EMPLEO_PERSONAL_SANITARIO": "ID", "IDENTIF_VEHICULOS_NRSERIE_PLACAS": "ID",
    "IDENTIF_DISPOSITIVOS_NRSERIE": "ID", "NUMERO_BENEF_PLAN_SALUD": "ID",
    "URL_WEB": "URL", "DIREC_PROT_INTERNET": "URL",
    "JOB": "PROFESSION", "OCCUPATION": "PROFESSION", "PROFESION": "PROFESSION",
    "EDAD_SUJETO_ASISTENCIA": "AGE",
    "FAMILIARES_SUJETO_ASISTENCIA": "RELATIVE",
}  # fmt: skip


def kind_of(label: str) -> str:
    """Our type for a label of another corpus or model (``B-PER``, ``PERSON``); unknown ones stay as they are."""
    plain = re.sub(r"^[BIESLU][-_]", "", label).upper()
    return KINDS.get(plain, plain)


def built_in(spec: str | None) -> bool:
    """Whether a spec names built-in members only, which execute no code of others."""
    return spec is None or all(one.strip() in BUILT_IN for one in spec.split("+"))

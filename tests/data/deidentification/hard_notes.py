"""Notes that are hard to de-identify: names without titles, initials, dates in words, capitals, small letters, tabs, OCR.

Each note marks its details as ``{N:Jane Doe}``, with the first letter of a type (`LETTERS`). The rules were written while
looking at ``SEEN``; ``UNSEEN`` was written at the same time and first only measured; two general faults
were mended later after its leaks had been looked at. The people are invented.
"""
# ruff: noqa: RUF001, E501 (letters of several scripts are intended, and notes have long lines)

import re
from typing import Any

LETTERS = {
    "N": "NAME", "D": "DATE", "I": "ID", "P": "PHONE", "E": "EMAIL", "A": "ADDRESS", "T": "TOWN", "H": "HOSPITAL",
    "J": "PROFESSION", "G": "AGE",
}  # fmt: skip
MARK = re.compile(r"{([A-Z]):([^{}]*)}")


def note(marked: str, language: str) -> dict[str, Any]:
    """A note with its spans, from a marked text."""
    text, personal, position = "", [], 0
    for m in MARK.finditer(marked):
        text += marked[position : m.start()]
        personal.append({"span": [len(text), len(text) + len(m[2])], "type": LETTERS[m[1]]})
        text, position = text + m[2], m.end()
    return {"text": text + marked[position:], "lang": language, "personal": personal}


SEEN = {
    "en": [
        "Reviewed on rounds. {N:Okafor} remains febrile, cultures pending. {N:Adaeze Okafor} asked that her sister {N:Ngozi} be phoned on {P:07700 900 482}. Plan: continue ceftriaxone. Discussed with {N:Whitcombe} and {N:L. Prakash}.",
        "{N:SMITH, JOHN}   DOB:{D:03/14/1969}   MRN {I:4471902}\nDR. {N:SMITH} NOTES CHEST PAIN RADIATING TO THE LEFT ARM SINCE {D:TUESDAY 4 MARCH 2021}. TROPONIN NEGATIVE. PT LIVES ON {A:44 HAWTHORN LANE}, {T:DUDLEY}.",
        "pt seen w/ mother. {N:harriet lowe} reports low mood since the {D:third of june}. takes sertraline 50 mg. lives in {T:swansea}. contact {E:h.lowe@mailbox.example}",
        "Name:\t{N:Tobias Fennimore}\tAge:\t{G:94}\tHosp no:\t{I:RX-558201}\nReferred by {N:Fennimore}'s GP, {N:Alan Burdett}, {H:Thornbury Health Centre}. Parkinson's disease, Barrett's oesophagus, started Sinemet.",
        "{N:Mr. Wal1ace} was seen in c1inic on {D:12 Novernber 2019}. {N:Wallace} denies chest pain. Bloods: Hb 13.2 g/dl. Follow-up with {N:Priya Raghunathan}.",
    ],
    "de": [
        "Visite: {N:Hallermann} klagt weiter über Luftnot. Rücksprache mit {N:Yildiz} erfolgt. Die Ehefrau {N:Gudrun Hallermann} ist unter {P:0421 558 7310} erreichbar. Röntgen Thorax am {D:dritten März 2020} unauffällig.",
        "{N:BRANDSTÄTTER, KARL-HEINZ}, GEB. {D:07.11.1938}, FALLNR. {I:20194477}. WOHNHAFT {A:LINDENSTRASSE 12}, {T:83024 ROSENHEIM}. MORBUS PARKINSON, ARTERIELLE HYPERTONIE.",
        "pat. {N:anneliese kröger} kommt mit übelkeit seit mitte {D:april 2018}, hausarzt {N:detlef sievers}, tel. {P:04131-88420}",
        "Der {G:93}-jährige Patient {N:Ewald Tönnies}, früher {J:Schlosser}, lebt im {H:Seniorenheim St. Elisabeth} in {T:Soest}. Morbus Crohn bekannt. Therapie mit Bisoprolol und Ramipril. Gez. {N:M. Kowalczyk}",
        "Aufnahme am {D:O3.09.2017} durch {N:Dr. Schu1te}. {N:Schulte} dokumentiert Herzrasen. Kopie an {N:Ingeborg Pfannenschmidt}.",
    ],
    "fr": [
        "{N:Kerbrat} se plaint de céphalées depuis le {D:3 mars}. Son fils {N:Yannick} l'accompagne. Avis demandé à {N:Boulanger} ce matin. Traitement par Doliprane poursuivi, maladie de Crohn connue.",
        "{N:LEFEBVRE-MOREL, Solange} née le {D:14/02/1931}, IPP {I:80014523}\t{A:17 rue des Tanneurs}\t{T:59800 Lille}\tDR {N:VASSEUR}",
        "vue en consultation {N:mireille castaing}, {G:91} ans, ancienne {J:institutrice}, habite à {T:bergerac}. tél {P:05 53 57 88 21}. diabète équilibré.",
        "Le {D:premier mai deux mille dix-neuf}, {N:Étienne Roudaut} est transféré de la {H:clinique des Acacias}. Contact : {N:A. Benhaddou} ({E:a.benhaddou@chu-exemple.example}).",
        "Pati ente {N:Bé1anger} revue le {D:22 f évrier 2016}. {N:Bélanger} va mieux ; syndrome de Raynaud stable.",
    ],
    "es": [
        "{N:Iturralde} refiere disnea desde hace una semana. Acude con su hija {N:Maialen}, que aporta informe del {H:Hospital Virgen del Camino}. Comentado con {N:Zubeldia}. Se pauta Enantyum. Enfermedad de Crohn conocida.",
        "{N:GARRIDO PEÑALVER, ROSARIO}\tNHC: {I:554120}\tF. NAC: {D:09-08-1927}\tDR. {N:OLMEDO}\nPACIENTE DE {G:96 AÑOS} CON FIEBRE. DOMICILIO {A:C/ TOLEDO 14, 3º B}, {T:GETAFE}.",
        "paciente {N:leandro bustamante quiroga}, natural de {T:ponferrada}, {J:minero} jubilado, ingresa el {D:quince de enero de 2014} por dolor torácico. tfno {P:987 41 22 09}",
        "El {D:lunes 3 de octubre} valoramos a {N:Encarna Villalobos}. Según {N:Encarna}, el dolor cede con paracetamol. Firmado: {N:J. M. Arrizabalaga}, nº colegiado {I:28/51772}.",
        "Ingresa {N:Ferm1n Goikoetxea} el {D:l2/05/2011} procedente de {T:Tolosa}. {N:Goikoetxea} permanece afebril. Síndrome de Sjögren. Alta por {N:Nekane Ibarrola}.",
    ],
    "it": [
        "{N:Brambilla} lamenta dolore epigastrico da ieri. Parlato con il figlio {N:Oreste} e con {N:Fumagalli}. Morbo di Crohn noto, terapia con Pentasa. Visita il {D:tre aprile}.",
        "{N:DE SANTIS, GIOVANNA}  NATA IL {D:22/07/1929}  C.F. {I:DSNGNN29L62H501K}  RESIDENTE IN {A:VIA DEI GELSOMINI 8}, {T:VITERBO}. DOTT. {N:MASTROIANNI}.",
        "paziente {N:ubaldo pescatori} di {G:92} anni, ex {J:falegname}, vive a {T:jesi}. telefono {P:0731 559 402}. riferisce tosse.",
        "In data {D:15 gennaio 2018} dimessa dall'{H:Ospedale San Gerardo} di {T:Monza} la signora {N:Ivana Cattaneo}. Per informazioni {N:R. Del Prete}, {E:delprete@asl-esempio.example}.",
        "Il paz. {N:Man1io Quaranta} ricoverato il {D:3O/06/2015}; {N:Quaranta} apiretico. Segno di Babinski assente.",
    ],
    "pt": [
        "{N:Vasconcelos} mantém febre. Falei com a filha {N:Graça} e com {N:Teixeira}. Doença de Parkinson conhecida, medicado com Sinemet. Reavaliar no dia {D:cinco de maio}.",
        "{N:FIGUEIREDO, MARIA DA LUZ}\tDN: {D:03/12/1930}\tProcesso: {I:77120943}\tDR. {N:SARAIVA}\t{A:RUA DO CARMO 55}, {T:BRAGA}",
        "doente {N:anselmo quintela}, {J:pescador} reformado, {G:93} anos, natural de {T:peniche}, internado a {D:dois de junho de 2017}. telemóvel {P:912 448 301}",
        "Transferida do {H:Hospital de São Teotónio} em {D:17 de agosto de 2020}, {N:Lurdes Bettencourt} permanece estável. Médica: {N:C. Nóbrega}, cédula {I:41288}.",
        "Observado {N:Joaqu1m Raposeira} em {D:O4/10/2013}. {N:Raposeira} nega dor. Síndrome de Guillain-Barré em {D:2010}.",
    ],
    "ru": [
        "{N:Бочкарёва} жалуется на одышку. Сопровождает дочь {N:Злата}. Консультация с {N:Тимошенковым} проведена {D:третьего марта 2019 года}. Болезнь Крона в анамнезе.",
        "{N:КУЛАГИН АНАТОЛИЙ ПЕТРОВИЧ}, Д.Р. {D:12.05.1931}, ИБ № {I:448201}. АДРЕС: {A:УЛ. САДОВАЯ 14-22}, {T:Г. КАЛУГА}.",
        "пациентка {N:зинаида ермолаева}, {G:91} год, бывшая {J:швея}, поступила {D:пятого июня 2016 г.} тел. {P:8 4842 55-71-03}",
        "Осмотрен {N:Р. Хабибуллин}, переведён из {H:больницы имени Семашко}. Лечащий врач {N:Ольга Синицына}. Назначен Конкор.",
    ],
    "he": [
        "{N:אברמוביץ} מתלונן על כאבים בחזה. ליוותה אותו בתו {N:שירלי}. שוחחנו עם {N:דליה אברמוביץ} בטלפון {P:052-4418820}.",
        "המטופלת {N:רחל בן חמו}, בת {G:92}, התקבלה ביום {D:שלישי במרץ 2019} מ{H:בית החולים סורוקה}. הרופא המטפל {N:נועם קפלינסקי}. ת.ז. {I:034418827}",
        "שם:\t{N:יוסף חדאד}\tתאריך לידה:\t{D:14/02/1941}\tכתובת:\t{A:רחוב הגפן 12}, {T:חיפה}",
    ],
    "ar": [
        "المريض {N:عبد الرحمن الشمري} يعاني من ضيق في التنفس منذ {D:3 مارس 2019}. رافقته ابنته {N:نورة}. هاتف {P:0551234987}.",
        "الطبيبة المعالجة {N:سلمى الحاج}، {H:مستشفى الملك فيصل}. المريضة {N:فاطمة بنت خالد الزهراني} عمرها {G:93} عاما. رقم الملف {I:778120}",
        "الاسم:\t{N:ياسر القحطاني}\tتاريخ الميلاد:\t{D:12/05/1944}\tالعنوان:\t{A:شارع النخيل 14}، {T:جدة}",
    ],
    "bg": [
        "{N:Стаматов} се оплаква от задух. Придружава го дъщеря му {N:Радостина}. Консултиран с {N:Каменов} на {D:трети март 2019 г.} Болест на Паркинсон.",
        "Пациентката {N:Цветана Дреновска}, {G:92}-годишна, живее на {A:ул. Шипка 14}, {T:Ловеч}. Тел. {P:068 55 71 03}.",
    ],
    "uk": [
        "{N:Гаврилюк} скаржиться на задишку. Супроводжує донька {N:Соломія}. Консультація з {N:Дорошенком} {D:третього березня 2019 року}. Хвороба Крона.",
        "Пацієнтка {N:Ярослава Тимчишин}, {G:91} рік, мешкає: {A:вул. Шевченка 14}, {T:Коломия}. Тел. {P:03433 5 71 03}.",
    ],
}

UNSEEN = {
    "en": [
        "Night shift: {N:Abernathy} pulled out his cannula twice. {N:Rowena} (wife) informed at {P:0113 496 0021}. Handed over to {N:Desai}. No focal neurology, GCS 15.",
        "{N:MCALLISTER, FIONA}  NHS NO {I:943 476 5919}  D.O.B. {D:21/09/1933}\nSEEN BY DR {N:OYELARAN} AT {H:KINGSMEAD HOSPITAL}. KNOWN CROHN'S DISEASE AND ATRIAL FIBRILLATION.",
        "spoke to {N:declan mcgrath} on the {D:twenty-first of may 2020}, he works as a {J:welder} in {T:sunderland}. still smoking.",
        "Patient:\t{N:Ottoline Hargreaves}\tAge:\t{G:97}\tAddress:\t{A:9 Mill Close}\t{T:Hexham}\n{N:Hargreaves} lives with her niece {N:Beatrix}. Seen by {N:K. T. Villanueva}.",
        "Ms {N:Ferr4nte} attended 0n {D:7 Febuary 2018}. Results sent to {N:Gareth Llewellyn}. Guillain-Barré excluded.",
    ],
    "de": [
        "{N:Wiesinger} heute deutlich wacher. Telefonat mit der Tochter {N:Friederike}, {P:0511/4482097}. Konsil durch {N:Abdullahi} am {D:5. Juni}. Morbus Basedow bekannt.",
        "{N:ZIEGENHAGEN, ERNA}, GEB. {D:19.02.1929}, {A:AM MÜHLENBACH 3}, {T:37073 GÖTTINGEN}. BEHANDELNDER ARZT: DR. {N:NIEMÖLLER}. HERZINSUFFIZIENZ.",
        "patientin {N:roswitha dettmer} stellt sich am {D:ersten juli 2019} mit schwindel vor, arbeitet als {J:verkäuferin} in {T:celle}.",
        "Verlegung aus dem {H:Klinikum Nordstadt}. {N:Horst-Dieter Lüttke}, {G:90} Jahre, wird von {N:P. Szymanski} betreut. Versichertennummer {I:A448120937}.",
    ],
    "fr": [
        "{N:Guillemot} a mal dormi. La fille, {N:Maëlys}, rappelle au {P:06 12 44 87 09}. Discuté avec {N:Traoré} : poursuite du Lasix, maladie de Parkinson.",
        "{N:CHARPENTIER, RAYMOND}  NÉ LE {D:02/11/1928}  NIP {I:55120098}  SUIVI PAR LE DR {N:DELMAS}, {H:HÔPITAL SAINT-ANTOINE}. {A:5 AVENUE DES TILLEULS}, {T:RENNES}.",
        "{N:odile bertin} est hospitalisée depuis le {D:douze janvier 2020}, {J:boulangère} retraitée à {T:morlaix}, {G:94} ans.",
        "Courrier à {N:Fatoumata Diallo}. Le {D:lundi 7 septembre}, {N:G. Peyronnet} a revu {N:Sylvain Marchetti} : pas de signe de Babinski.",
    ],
    "es": [
        "{N:Echeverría} sigue con fiebre. Avisada su esposa {N:Amparo} al {P:616 44 20 87}. Interconsulta con {N:Sanchís}. Se mantiene Augmentine. Enfermedad de Parkinson.",
        "{N:MONTALBÁN RUIZ, EUSEBIO}  NHC {I:771204}  FECHA DE NACIMIENTO {D:30/01/1926}  DRA. {N:CARBONELL}  {H:HOSPITAL CLÍNICO}. {A:AVDA. DE LA PAZ 7}, {T:ALCOY}.",
        "acude {N:remedios santaolalla}, {J:costurera} jubilada de {G:93 años}, vive en {T:calahorra} desde {D:marzo de 2001}. refiere mareos.",
        "Con fecha {D:veinte de noviembre de 2018}, {N:Purificación Artola} es dada de alta. {N:P. Artola} acudirá a {N:Josu Mendizábal}. Núm. de colegiado {I:31/04412}.",
    ],
    "it": [
        "{N:Zanardelli} riposa. Chiamata la moglie {N:Ersilia} al {P:338 447 1209}. Sentito {N:Capuano}: proseguire Lasix. Morbo di Parkinson.",
        "{N:LO MONACO, SALVATORE}  NATO IL {D:01/03/1927}  CARTELLA {I:220981}  DOTT.SSA {N:TAGLIAFERRI}  {H:OSPEDALE MAGGIORE}, {T:LODI}.",
        "visto oggi {N:fausto ghirardi}, {J:muratore} in pensione, abita a {T:fidenza}, ricoverato il {D:due giugno 2019}.",
        "{N:Concetta Lo Presti}, {G:95} anni, trasferita da {H:Villa Serena}. Referto di {N:E. Buonocore} del {D:9 dicembre}. {N:Concetta} vigile.",
    ],
    "pt": [
        "{N:Albuquerque} sem queixas. Esposa {N:Deolinda} contactada pelo {P:931 220 478}. Caso discutido com {N:Noronha}. Mantém Lasix. Doença de Crohn.",
        "{N:SEQUEIRA, ADELINO}  DATA DE NASCIMENTO {D:11/06/1928}  SNS {I:204118773}  DRA. {N:PESTANA}  {H:HOSPITAL DE SANTA MARTA}  {T:LISBOA}",
        "{N:ermelinda brandão}, {G:92} anos, {J:modista}, vive em {T:tomar}, caiu no dia {D:vinte de março de 2018}.",
        "A pedido de {N:Tomé Falcão} revi {N:Idalina Seabra} a {D:3 de novembro}. {N:Idalina} melhor. Assinado {N:B. Quaresma}.",
    ],
    "ru": [
        "{N:Прохоренко} спал плохо. Жена {N:Клавдия} сообщила по телефону {P:8 912 448-20-87}. Обсуждено с {N:Гусейновым}. Болезнь Паркинсона.",
        "{N:САФРОНОВА ЛИДИЯ ИВАНОВНА}, ДАТА РОЖДЕНИЯ {D:01.03.1930}, ПОЛИС {I:4481209377}, {T:Г. ТВЕРЬ}. ВРАЧ {N:МЕЛКОНЯН}.",
        "Пациент {N:Тимур Валиев}, {J:сварщик}, проживает в {T:Елабуге}, поступил {D:двадцатого мая 2018 года} в {H:Городскую больницу № 4}.",
    ],
    "he": [
        "{N:גולדשטיין} ישן היטב. אשתו {N:פנינה} התקשרה ממספר {P:054-9982013}. הוחלט יחד עם {N:איתן מזרחי}.",
        "החולה {N:שולמית ועקנין}, בת {G:95}, תושבת {T:דימונה}, הועברה מ{H:המרכז הרפואי שיבא} ביום {D:4 במאי 2020}. רופאה: {N:יעל ברקוביץ}.",
    ],
    "ar": [
        "نام {N:الدوسري} جيدا. اتصلت زوجته {N:منيرة} من الرقم {P:0509982013}. نوقشت الحالة مع {N:طارق النعيمي}.",
        "المريضة {N:خديجة بوعزة}، {G:95} سنة، تقيم في {T:طنجة}، نقلت من {H:مستشفى ابن سينا} بتاريخ {D:4 مايو 2020}. الطبيب {N:حمزة العلوي}.",
    ],
    "bg": [
        "{N:Попангелов} спа добре. Съпругата {N:Йорданка} се обади от {P:0887 44 20 87}. Обсъдено с {N:Кючуков} на {D:пети май}."
    ],
    "uk": [
        "{N:Ковальчишин} спав добре. Дружина {N:Мирослава} телефонувала з {P:067 448 20 87}. Обговорено з {N:Левицькою} {D:п'ятого травня}."
    ],
}


def notes(marked: dict[str, list[str]]) -> dict[str, list[dict[str, Any]]]:
    """The notes of a set by language."""
    return {language: [note(one, language) for one in some] for language, some in marked.items()}

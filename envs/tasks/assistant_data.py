"""What the assistant's tools know: places and their time zones, currencies, phrases.

Time zones are the real ones.  Exchange values are rounded and belong to no day: what matters is that all rates follow
from one table.  Weather is drawn for each episode.
"""

from __future__ import annotations

TIME_ZONES: dict[str, str] = {
    "Athens": "Europe/Athens",
    "Auckland": "Pacific/Auckland",
    "Bangkok": "Asia/Bangkok",
    "Beijing": "Asia/Shanghai",
    "Berlin": "Europe/Berlin",
    "Buenos Aires": "America/Argentina/Buenos_Aires",
    "Cairo": "Africa/Cairo",
    "Chicago": "America/Chicago",
    "Denver": "America/Denver",
    "Dubai": "Asia/Dubai",
    "Helsinki": "Europe/Helsinki",
    "Hong Kong": "Asia/Hong_Kong",
    "Honolulu": "Pacific/Honolulu",
    "Istanbul": "Europe/Istanbul",
    "Jakarta": "Asia/Jakarta",
    "Johannesburg": "Africa/Johannesburg",
    "Kathmandu": "Asia/Kathmandu",
    "Lagos": "Africa/Lagos",
    "Lima": "America/Lima",
    "London": "Europe/London",
    "Los Angeles": "America/Los_Angeles",
    "Madrid": "Europe/Madrid",
    "Mexico City": "America/Mexico_City",
    "Mumbai": "Asia/Kolkata",
    "Nairobi": "Africa/Nairobi",
    "New York": "America/New_York",
    "Oslo": "Europe/Oslo",
    "Paris": "Europe/Paris",
    "Rome": "Europe/Rome",
    "Sao Paulo": "America/Sao_Paulo",
    "Seoul": "Asia/Seoul",
    "Singapore": "Asia/Singapore",
    "Sydney": "Australia/Sydney",
    "Tokyo": "Asia/Tokyo",
    "Toronto": "America/Toronto",
}

# code: (name in the plural, US dollars for one unit)
CURRENCIES: dict[str, tuple[str, str]] = {
    "AUD": ("Australian dollars", "0.66"),
    "BRL": ("Brazilian reais", "0.19"),
    "CAD": ("Canadian dollars", "0.73"),
    "CHF": ("Swiss francs", "1.12"),
    "CNY": ("Chinese yuan", "0.138"),
    "EUR": ("euros", "1.08"),
    "GBP": ("British pounds", "1.27"),
    "INR": ("Indian rupees", "0.012"),
    "JPY": ("Japanese yen", "0.0066"),
    "KRW": ("South Korean won", "0.00073"),
    "MXN": ("Mexican pesos", "0.055"),
    "SEK": ("Swedish kronor", "0.094"),
    "USD": ("US dollars", "1"),
    "ZAR": ("South African rand", "0.054"),
}

CONDITIONS = ("sunny", "cloudy", "rainy", "windy", "foggy", "partly cloudy")

LANGUAGES: dict[str, str] = {
    "french": "fr",
    "spanish": "es",
    "german": "de",
    "italian": "it",
    "portuguese": "pt",
    "dutch": "nl",
    "chinese": "zh",
    "japanese": "ja",
}
# English and the languages in the order of LANGUAGES.
_PHRASES = """
hello | bonjour | hola | hallo | ciao | olá | hallo | 你好 | こんにちは
good morning | bonjour | buenos días | guten Morgen | buongiorno | bom dia | goedemorgen | 早上好 | おはようございます
good night | bonne nuit | buenas noches | gute Nacht | buonanotte | boa noite | goedenacht | 晚安 | おやすみなさい
thank you | merci | gracias | danke | grazie | obrigado | dank je | 谢谢 | ありがとう
goodbye | au revoir | adiós | auf Wiedersehen | arrivederci | adeus | tot ziens | 再见 | さようなら
please | s'il vous plaît | por favor | bitte | per favore | por favor | alsjeblieft | 请 | お願いします
yes | oui | sí | ja | sì | sim | ja | 是 | はい
no | non | no | nein | no | não | nee | 不 | いいえ
water | eau | agua | Wasser | acqua | água | water | 水 | 水
bread | pain | pan | Brot | pane | pão | brood | 面包 | パン
milk | lait | leche | Milch | latte | leite | melk | 牛奶 | 牛乳
apple | pomme | manzana | Apfel | mela | maçã | appel | 苹果 | りんご
cat | chat | gato | Katze | gatto | gato | kat | 猫 | 猫
dog | chien | perro | Hund | cane | cão | hond | 狗 | 犬
book | livre | libro | Buch | libro | livro | boek | 书 | 本
house | maison | casa | Haus | casa | casa | huis | 房子 | 家
friend | ami | amigo | Freund | amico | amigo | vriend | 朋友 | 友達
library | bibliothèque | biblioteca | Bibliothek | biblioteca | biblioteca | bibliotheek | 图书馆 | 図書館
school | école | escuela | Schule | scuola | escola | school | 学校 | 学校
I love you | je t'aime | te quiero | ich liebe dich | ti amo | eu te amo | ik hou van jou | 我爱你 | 愛してる
"""
PHRASES: dict[str, dict[str, str]] = {
    english: dict(zip(LANGUAGES, translations, strict=True))
    for english, *translations in ([part.strip() for part in line.split("|")] for line in _PHRASES.strip().splitlines())
}

"""Languages are told by script and frequent words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.rewards.language import LANGUAGES, detect, is_in, share

SENTENCES = {
    "ar": "أنا أحب القراءة في المساء لأن البيت يكون هادئا. هذا الكتاب من المكتبة التي تقع على الشارع الكبير.",
    "bg": "Обичам да чета вечер, защото къщата е тиха. Тази книга е от библиотеката, която се намира на улицата.",
    "bn": "আমি সন্ধ্যায় বই পড়তে ভালোবাসি কারণ তখন বাড়ি শান্ত থাকে।",
    "cs": "Rád čtu večer, protože je doma ticho. Tato kniha je z knihovny, která je na hlavní ulici.",
    "da": "Jeg kan godt lide at læse om aftenen, fordi huset er stille. Bogen er fra biblioteket og er ikke lang.",
    "de": "Ich lese abends gern, weil es dann im Haus ruhig ist. Dieses Buch ist aus der Bibliothek an der Straße.",
    "el": "Μου αρέσει να διαβάζω το βράδυ, γιατί το σπίτι είναι ήσυχο.",
    "en": "I like to read in the evening because the house is quiet then. This book is from the library.",
    "es": "Me gusta leer por la noche porque la casa está tranquila. Este libro es de la biblioteca.",
    "fa": "من دوست دارم شب‌ها کتاب بخوانم چون خانه آرام است. این کتاب را از کتابخانه گرفتم و برای شما آوردم.",
    "fi": "Luen mielelläni illalla, koska talo on silloin hiljainen. Tämä kirja on kirjastosta, joka ei ole iso.",
    "fr": "J'aime lire le soir parce que la maison est calme. Ce livre vient de la bibliothèque qui est dans la rue.",
    "gu": "મને સાંજે વાંચવું ગમે છે કારણ કે ત્યારે ઘર શાંત હોય છે.",
    "he": "אני אוהב לקרוא בערב כי הבית שקט. הספר הזה הוא מהספרייה.",
    "hi": "मुझे शाम को पढ़ना पसंद है क्योंकि तब घर शांत होता है। यह किताब पुस्तकालय से है और बहुत अच्छी है।",
    "hu": "Szeretek este olvasni, mert akkor csend van a házban. Ez a könyv a könyvtárból van, és nagyon jó.",
    "id": "Saya suka membaca pada malam hari karena rumah itu tenang. Buku ini dari perpustakaan yang ada di jalan.",
    "it": "Mi piace leggere la sera perché la casa è tranquilla. Questo libro viene dalla biblioteca.",
    "ja": "夜は家が静かなので、本を読むのが好きです。この本は図書館で借りました。",
    "kn": "ನನಗೆ ಸಂಜೆ ಓದುವುದು ಇಷ್ಟ ಏಕೆಂದರೆ ಆಗ ಮನೆ ಶಾಂತವಾಗಿರುತ್ತದೆ.",
    "ko": "저녁에는 집이 조용하기 때문에 책을 읽는 것을 좋아합니다.",
    "ml": "വൈകുന്നേരം വീട് ശാന്തമായതിനാൽ എനിക്ക് വായിക്കാൻ ഇഷ്ടമാണ്.",
    "mr": "मला संध्याकाळी वाचायला आवडते कारण तेव्हा घर शांत असते. हे पुस्तक ग्रंथालयातून आणले आहे आणि ते खूप छान आहे.",
    "ne": "मलाई साँझ पढ्न मन पर्छ किनभने घर शान्त हुन्छ। यो किताब पुस्तकालयको हो र यो धेरै राम्रो छ।",
    "nl": "Ik lees graag in de avond, omdat het huis dan stil is. Dit boek is van de bibliotheek.",
    "no": "Jeg liker å lese om kvelden, fordi det er stille i huset. Boka er fra biblioteket, og den er ikke noe lang.",
    "pa": "ਮੈਨੂੰ ਸ਼ਾਮ ਨੂੰ ਪੜ੍ਹਨਾ ਪਸੰਦ ਹੈ ਕਿਉਂਕਿ ਘਰ ਸ਼ਾਂਤ ਹੁੰਦਾ ਹੈ।",
    "pl": "Lubię czytać wieczorem, ponieważ dom jest wtedy cichy. Ta książka jest z biblioteki, która jest przy ulicy.",
    "pt": "Gosto de ler à noite porque a casa está calma. Este livro é da biblioteca e não fica longe.",
    "ro": "Îmi place să citesc seara, pentru că este liniște în casă. Această carte este de la biblioteca din oraș.",
    "ru": "Я люблю читать вечером, потому что дома тихо. Эта книга из библиотеки, которая была на этой улице.",
    "sv": "Jag tycker om att läsa på kvällen, för då är det tyst i huset. Den här boken är från biblioteket.",
    "sw": "Ninapenda kusoma jioni kwa sababu nyumba huwa kimya. Kitabu hiki ni cha maktaba ambayo iko katika mtaa.",
    "ta": "மாலையில் வீடு அமைதியாக இருப்பதால் எனக்கு படிக்கப் பிடிக்கும்.",
    "te": "సాయంత్రం ఇల్లు ప్రశాంతంగా ఉంటుంది కాబట్టి నాకు చదవడం ఇష్టం.",
    "th": "ฉันชอบอ่านหนังสือตอนเย็นเพราะบ้านเงียบสงบ",
    "tr": "Akşamları okumayı severim çünkü ev o zaman sessiz olur. Bu kitap kütüphaneden ve çok güzel bir kitap.",
    "uk": "Я люблю читати ввечері, тому що вдома тихо. Ця книга з бібліотеки, яка була на цій вулиці.",
    "ur": "مجھے شام کو پڑھنا پسند ہے کیونکہ گھر میں خاموشی ہوتی ہے۔ یہ کتاب لائبریری سے ہے اور بہت اچھی ہے۔",
    "vi": "Tôi thích đọc sách vào buổi tối vì nhà rất yên tĩnh. Quyển sách này là của thư viện ở trên đường.",
    "zh": "我喜欢在晚上看书，因为家里很安静。这本书是从图书馆借来的。",
}
CLOSE = {("da", "no"), ("no", "da")}
"""Pairs that two sentences may not tell apart."""


def test_every_language_has_a_sentence() -> None:
    assert set(SENTENCES) == set(LANGUAGES)


@pytest.mark.parametrize("code", SENTENCES)
def test_a_language_is_told(code: str) -> None:
    assert detect(SENTENCES[code]) == code
    assert is_in(SENTENCES[code], code)
    assert share(SENTENCES[code], code) == 1.0


@pytest.mark.parametrize("code", SENTENCES)
def test_a_text_is_in_no_other_language(code: str) -> None:
    taken = {other for other in LANGUAGES if other != code and is_in(SENTENCES[code], other)}
    assert {(code, other) for other in taken} <= CLOSE


def test_capitals_are_read_as_small_letters() -> None:
    assert detect(SENTENCES["de"].upper()) == "de"


def test_code_formulas_and_addresses_are_not_read() -> None:
    text = "代码如下：\n```python\nfor name in names: print(name)\n```\n见 https://example.org/page 与 $a = b$。"
    assert is_in(text, "zh")


def test_a_text_without_letters_is_in_no_language_and_consistent_with_each() -> None:
    assert detect("42 = 6 * 7") is None
    assert not is_in("42 = 6 * 7", "en")
    assert share("42 = 6 * 7", "en") == 1.0


def test_a_few_words_that_tell_nothing_pass_in_their_script() -> None:
    assert detect("Paris") is None
    assert is_in("Paris", "fr")
    assert not is_in("Paris", "ru")


def test_a_long_paragraph_in_another_language_is_found_in_a_longer_text() -> None:
    english, french = SENTENCES["en"], SENTENCES["fr"]
    assert is_in("\n\n".join([english] * 5), "en")
    assert not is_in("\n\n".join([english] * 5 + [french]), "en")


def test_the_share_of_mixed_scripts_counts_letters_about_as_words() -> None:
    # 13 Latin letters; 4 Han characters of weight 2.5 make 10
    assert share("The answer is 4: 答案是四", "en") == pytest.approx(11 / 21)
    assert share("The answer is 4: 答案是四", "zh") == pytest.approx(10 / 21)


@given(st.text())
def test_any_text_has_a_share_from_0_to_1_and_perhaps_a_language(text: str) -> None:
    assert detect(text) in {None, *LANGUAGES}
    for code in ("en", "zh", "ja", "ko", "ar"):
        assert 0.0 <= share(text, code) <= 1.0
        assert is_in(text, code) in (True, False)

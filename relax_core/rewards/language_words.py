"""Frequent words of languages, by which texts in one script are told apart.

Guarantee: plain data; every list has the function words that nearly every sentence of the language has some of.
"""

from collections.abc import Mapping

LATIN: Mapping[str, str] = {
    "en": """a the of and to in is was he for it with as his on be at by i this had not are but from or have an they
        which one you were all her she there would their we him been has when who will no more if out so up said what
        its about than into them can only other time could do did your my how our these those am does should also very
        just because while where after before then any some such most us me yes here let like make may might must each
        both between through without within many much own same new now even still over under again never always""",
    "es": """de la que el en y los se del las un por con una su para es al lo como más pero sus le ha este sí porque
        esta entre cuando muy sin sobre también me hasta hay donde quien desde todo nos durante todos uno les ni contra
        otros ese eso ante ellos esto antes algunos qué unos yo otro otras otra él tanto esa estos mucho nada cual poco
        ella estar estas algo nosotros mi mis tú tu te ti soy eres somos son está están era fue ser puede pueden tiene
        sino cada así ahora siempre después""",
    "pt": """de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à seu
        sua ou ser quando muito há nos já está eu também só pelo pela até isso ela entre era depois sem mesmo aos ter
        seus quem nas me esse eles estão você tinha foram essa num nem suas meu às minha têm numa pelos elas havia seja
        qual será nós tenho lhe deles essas esses pelas este fosse dele tu te vocês vos pode podem são sobre onde isto
        fazer ainda assim porque""",
    "fr": """de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont ou avec son
        elle aux mais comme on nous vous leur cette ces ses tout fait être ont été cela très sans deux même ainsi si
        donc peut lui entre où dont était y sa faire aussi après encore je tu me te mon ma mes ton ta tes notre votre
        nos vos leurs quand parce chaque toujours ils elles c'est d'un d'une qu'il n'est l'on toutes tous autres""",
    "de": """der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er
        hat dass sie nach wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber vor zur bis
        mehr durch man sein wurde sei ich wir ihr du mich mir dich uns euch ihm ihn ihre seine kann können sehr wenn
        weil dieser diese dieses was wer wo hier doch schon unter gegen vom ob zwischen immer ja nein kein keine mein
        dein unser sowie damit""",
    "it": """di e il la che in un per è una del non con si da dei al le i della sono come più nel alla ma gli ha o anche
        lo ed se dal questo delle su ai suo sua nella dalla loro ad tra ci era quando stato essere molto hanno perché
        chi cui così io tu lui lei noi voi mi ti vi ne già ogni tutto tutti fare può possono poi prima dopo ancora dove
        senza sempre mio tuo nostro questa questi quello quella degli nei nelle sul sulla alle agli cosa quindi""",
    "pl": """i w na z się do nie jest że to o jak za od po co ale dla by przez czy przy ich ma są oraz tym tego może być
        jego już tylko jej lub który która które był była było ze jako tak także również gdy jeszcze bardzo między pod
        nad bez ten ta te tej tych aby więc ja ty on ona my wy oni mnie mi cię ci go mu nas nam was nim sobie swoje
        można wszystko kiedy gdzie jeśli ponieważ każdy""",
    "vi": """và của là có được cho không trong một những các với người này đã để khi đến về như từ ra nhiều cũng sẽ đó
        tại vào trên lại còn bạn tôi chúng họ anh em ông bà nó rằng thì mà phải nhưng hay hoặc nếu vì nên rất đang bị
        làm việc năm ngày theo sau trước giữa qua cùng mình gì đây thể cần mọi nhất hơn chỉ bởi""",
    "sw": """na ya wa kwa ni katika la za kuwa cha kama hii hiyo au lakini pia hivyo yake yao wake wao watu mtu kila
        sana baada kabla kwamba ambayo ambao ambaye hapa huo huu hizi hilo hiki ili bila kutoka hadi tu si sisi wewe
        mimi yeye nini wakati siku mwaka moja mbili vya vitu ina ana wana tuna una nina kuna alikuwa ilikuwa walikuwa
        hakuna zaidi kati juu chini yangu yako yetu wetu wako wangu kufanya mambo kwenye kwani""",
    "fi": """ja on ei se että hän oli mutta en ovat tai kun niin myös kuin joka ole mitä jos minä sinä me te he tämä
        tämän sen hänen minun sinun meidän heidän olla olen olet olemme voi voivat vain vielä nyt sitten koska kanssa
        jotka jonka mikä mukaan ennen jälkeen sekä eli siitä siinä sitä niitä näin hyvin paljon aina usein kaikki
        kaikkien mutta joita joiden kuitenkin esimerkiksi esimerkki olisi ollut olivat eivät itse noin kuten sillä
        toinen yksi kaksi jo""",
    "nl": """de het een en van in is dat op te zijn met voor niet aan er om ook als bij maar door naar uit over dan nog
        worden wordt werd heeft hebben had kan kunnen zal zou deze dit die wat wie waar hoe ik jij je hij zij ze we wij
        jullie u mijn jouw haar hun ons onze geen of want omdat wanneer tot tussen onder tegen veel meer zeer zo al
        alle altijd toch wel""",
    "sv": """och i att det som en på är av för med till den har de inte om ett han men var jag sig från vi så kan man
        när år under också efter eller nu sin där vid mot ska skulle kommer ut får finns vara hade alla andra mycket än
        här då sedan över bara in blir upp även vad få två vill ha många hur mer detta denna dessa hon ni du mig dig
        oss er deras mellan genom""",
    "da": """og i at det er en til på som de med for den der ikke af et har han var jeg sig fra vi så kan man når under
        også efter eller nu sin hvor ved mod skal ville kommer ud får findes være havde alle andre meget end her da
        siden over kun ind bliver op hvad få to vil mange hvordan mere dette denne disse hun du mig dig os jer deres
        mellem gennem blev noget""",
    "no": """og i det er en til på som de med for den ikke av et har han var jeg seg fra vi så kan man når under også
        etter eller nå sin hvor ved mot skal ville kommer ut får finnes være hadde alle andre mye enn her da siden over
        bare inn blir opp hva få to vil mange hvordan mer dette denne disse hun du meg deg oss dere deres mellom gjennom
        ble noe å ei kunne ved dette disse gjør være""",
    "tr": """ve bir bu da de için ile çok daha olarak gibi ne kadar en var olan değil sonra ise ama veya ya her o ben
        sen biz siz onlar ki mi mı mu mü olduğu tarafından göre önce şey kendi bütün tüm hem nasıl neden çünkü eğer
        ancak yani sadece bunu buna bunun şu oldu olur olan etmek etti eden üzerinde arasında bazı iyi büyük yok
        üzere böyle zaman""",
    "id": """yang dan di untuk dari dengan ini itu pada tidak dalam adalah akan ke oleh sebagai juga atau dapat telah
        karena saya kamu dia kami kita mereka ada bisa lebih seperti sudah belum harus jika maka agar namun tetapi
        hanya saat setelah sebelum antara semua setiap banyak sangat orang tahun hari bahwa secara para apa siapa
        bagaimana tersebut anda""",
    "cs": """a se v na je že o s z do i to k ve pro za by ale si po jako podle od jsem tak jsou které který která byl
        bylo byla také jeho její jejich nebo až už při než co jen kde když protože ze však jsme jste mě mi ti ho mu nás
        vás nám vám být může mají má není velmi mezi pod před více aby kdyby tento tato toto této tím""",
    "ro": """și de în la a cu pe care nu din este pentru un o se au mai ca sau dar ce prin după sunt fost lui lor ei el
        ea noi voi eu tu mă te îl îi le ne vă să fi dacă când unde cum foarte între până fără despre acest această
        aceste acestea cel cea cei cele unei unui ale ai al era ar poate pot trebuie doar încă toate tot fiecare
        deoarece""",
    "hu": """a az és hogy nem is egy van volt de ez meg ha mint csak már még el ki be fel le azt ezt vagy én te mi ti
        ők ő azonban mert nagyon több minden amely aki ami ezek azok között után előtt alatt szerint által lehet kell
        lesz lett vannak voltak sem itt ott úgy így akkor majd pedig illetve például hogyan miért""",
}

CYRILLIC: Mapping[str, str] = {
    "ru": """и в не на я что он с как это по но они к у ты из мы за вы так же от все для или о его бы было только ее
        когда если был быть может также который которая которые чтобы при до есть она нет очень где этот эта эти того
        этого без под над между после потому можно их мне меня нас вас""",
    "uk": """і в не на я що він з як це по але вони до у ти із ми за ви так же від все для або про його би було тільки
        її коли якщо був бути може також який яка які щоб при є вона ні дуже де цей ця ці того цього без під над між
        після тому можна їх мені мене нас вас та й зі""",
    "bg": """и в не на аз че той с как това по но те към у ти от ние за вие така се всички или е неговия би беше само
        когато ако бил бъде може също който която които при до има тя няма много къде този тази тези без под над между
        след защото ги ни ви му са си ще да ли от със във""",
}

ARABIC: Mapping[str, str] = {
    "ar": """في من على أن إلى التي الذي هذا هذه ما لا كان عن مع كل هو هي أو لم قد بعد قبل بين عند حيث إن كما ذلك وقد
        حتى لكن ثم أنا نحن أنت هم إذا لأن غير أي تم يكون كانت ليس لها له به فيه منها أكثر جدا خلال يمكن""",
    "fa": """و در به از که این را با است برای آن یک خود تا بر هم نیز می شود شد بود ما من تو او شما آنها هر چه اما یا
        اگر باید همه دیگر پس پیش بین بسیار نمی های ها کرد کند دارد هستند چون کنید باشد بیشتر""",
    "ur": """کے کی ہے میں اور کا سے کو نے پر یہ کہ ہیں وہ بھی نہیں ایک تھا تھی اس ان جو تو ہو کر ہم آپ ہی لئے لیے گیا
        کیا رہا جا سکتا تھے ہوتا اپنے اپنی بہت جب تک یا مگر لیکن""",
}

DEVANAGARI: Mapping[str, str] = {
    "hi": """के में की है और से का को पर हैं यह कि एक नहीं इस भी ने था हो जो ही तो कर वह आप हम ये थे थी लिए रहा गया या
        अपने साथ कुछ जब तक बहुत होता सकता करने मैं उस उन जाता क्या लेकिन""",
    "mr": """आहे आणि या च्या ला ने मध्ये हे ते आहेत हा ही तो ती की नाही व एक होते होता होती साठी तर पण मी आम्ही तुम्ही
        आपण त्या त्यांच्या असे असतो असते करून झाले केले काही सर्व किंवा मला तुला येथे खूप म्हणजे""",
    "ne": """छ र मा को लाई हो यो छन् का एक भएको गर्न पनि त्यो भने थियो हुन्छ तर म हामी तपाईं उनी ले बाट की सँग हुने
        गरेको गर्ने यस अनि छैन वा धेरै सबै हरू हुन् गर्छ तपाईंको आफ्नो लागि""",
}

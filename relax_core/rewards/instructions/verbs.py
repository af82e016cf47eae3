"""English verbs that answers begin with, and words that look like verbs and are none.

Guarantee: plain data, in small letters.
"""

from relax_core.rewards.instructions.text import word_set

VERBS = word_set(
    """accept access account achieve acquire act adapt add address adjust admire admit adopt advance advise affirm
    agree aim allow alter amaze analyse analyze announce answer anticipate apologize appear apply appoint
    appreciate approach approve argue arise arrange arrive ask assess assign assist assume assure attach attack
    attain attempt attend attract avoid await bake balance base bathe be beat become beg begin behave believe
    belong bend bet bind bite blend blow boil boost borrow break breathe bring brush build burn burst bury buy
    calculate call calm cancel capture care carry cast catch cause celebrate challenge change charge chase check
    cheer choose chop circle claim clarify clean clear climb close code collaborate collect combine come comfort
    command commit communicate compare compete compile complain complete compose compute conceive concentrate
    conclude conduct confess configure confirm connect conquer consider consist construct consult contact
    contain continue contrast contribute convert convey convince cook cool copy correct cost count cover craft
    crave create cross crush cry cultivate cure customize cut dance dare deal debate decide declare decline
    decorate dedicate define delay delete deliver delve demand demonstrate deny depend deploy derive describe
    deserve design desire destroy detect determine develop devote diagnose die differ dig discover discuss
    display dissolve distinguish distribute dive divide do document donate doubt download draft drag draw dream
    dress drink drive drop dry earn ease eat edit educate elaborate elevate eliminate embark embody embrace
    emerge emphasize employ empower enable encounter encourage end endure engage enhance enjoy enrich ensure
    enter entertain envision escape establish estimate evaluate evolve examine exceed exchange execute exercise
    exist expand expect experience experiment explain explore express extend extract face facilitate fade fail
    fall familiarize fasten fear feed feel fetch fight figure fill filter find finish fit fix float flow fly
    focus fold follow forget forgive form format formulate foster free freeze fry fulfill function gain gather
    gaze generate get give glance glow go govern grab grant grasp greet grind grow guarantee guard guess guide
    hand handle hang happen harness hate have head heal hear heat help hide highlight hire hit hold honor hope
    host hug hunt hurry identify ignite ignore illustrate imagine immerse implement imply import improve include
    incorporate increase indicate influence inform inject insert inspect inspire install integrate intend
    interact interpret introduce invent invest investigate invite involve iterate join journey judge jump
    justify keep kick kill kiss kneel knock know label lack land last laugh launch lay lead lean leap learn
    leave lend let leverage lie lift light like limit link list listen live load locate lock log look lose love
    lower maintain make manage manipulate map march mark marry master match matter maximize mean measure meet
    melt mention merge migrate mind minimize miss mix modify monitor motivate mount move multiply must name
    narrate navigate need negotiate nod note notice nourish nurture obey observe obtain occur offer open operate
    optimize order organize overcome owe own pack paint participate pass paste pause pay perceive perform permit
    persist persuade pick picture place plan plant play plead please plot plug point ponder pose position
    possess post pour practice praise pray predict prefer prepare present preserve press pretend prevent print
    prioritize proceed process produce program project promise promote propose protect prove provide publish
    pull purchase pursue push put question quit quote raise reach react read realize rearrange recall receive
    recognize recommend record reduce refer refine reflect refuse regard register regret reinforce reject relate
    relax release rely remain remember remind remove render rent repair repeat replace reply report represent
    request require rescue research reserve resist resolve respect respond rest restore result retain retrieve
    return reveal review revise revisit reward rewrite ride ring rinse rise risk roast roll rotate run rush save
    savor say scale scan schedule scream search season seat secure see seek seem seize select sell send sense
    separate serve set settle sew shake shape share shift shine ship shoot shop should shout show shrink shut
    sign simmer simplify sing sink sit sketch skip slay sleep slice slide smell smile soar solve sort speak
    specify spend spill spin split spoil spread sprinkle stand stare start state stay steal step stick stir stop
    store strengthen stretch strike strive structure struggle study submit succeed suffer suggest suit summarize
    supply support suppose surround survive suspect swear sweep swim switch tackle tag take talk taste teach
    tear tell tend test thank think thrive throw tie toss touch track trade train transfer transform translate
    transport travel treat trim trust try turn type understand undertake unify unite unleash unlock unveil
    update upgrade upload use utilize validate value vary verify view visit visualize vote wait wake walk wander
    want warm warn wash waste watch wear weave weigh welcome whisk whisper win wipe wish withdraw witness wonder
    work worry wrap write yearn yell yield zoom"""
)

IRREGULAR = word_set(
    """am is are was were been being has had having does did done doing goes went gone can could may might shall will
    would began begun became broke broken brought built bought came caught chose chosen drew drawn drank drove
    driven ate eaten fell fallen felt found flew flown forgot forgotten gave given got gotten grew grown heard
    held hid hidden kept knew known laid led left lent lost made meant met paid ran rang risen rose said sang
    sat saw seen sent shone shot shown slept sold sought spent spoke spoken stood stole stolen struck stuck swam
    swum taken taught thought threw thrown told took understood woke won wore worn written wrote let put read
    set dying lying tying"""
)

NO_VERBS = word_set(
    """thing something nothing anything everything morning evening during king spring string wing ceiling sibling
    darling sterling pudding according bed red indeed hundred embed wed sacred naked wicked kindred sled shed
    speed seed weed breed feed deed greed need unprecedented exercise otherwise likewise clockwise wise paradise
    enterprise franchise expertise premise promise noise size prize rise precise concise"""
) - word_set("feed need exercise rise promise prize")

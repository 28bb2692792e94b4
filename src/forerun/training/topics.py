"""What packaged prompts are about. Written for this purpose."""


def listed(text: str, between: str = ";") -> tuple[str, ...]:
    """The parts of a text, each on one line."""
    return tuple(" ".join(part.split()) for part in text.split(between) if part.strip())


SUBJECTS = listed("""
photosynthesis; black holes; the water cycle; plate tectonics; vaccines; antibiotics resistance;
the immune system; DNA replication; evolution by natural selection; climate change; renewable
energy; nuclear fusion; solar panels; electric cars; batteries; the greenhouse effect; gravity;
special relativity; quantum entanglement; thermodynamics; entropy; electromagnetism;
superconductors; lasers; semiconductors; the periodic table; chemical bonding; acids and bases;
catalysts; polymers; the human heart; the nervous system; sleep; nutrition; vitamins; diabetes;
exercise and health; meditation; stress at work; burnout; the French Revolution; the Roman Empire;
ancient Egypt; the Industrial Revolution; the Silk Road; the Renaissance; the Cold War; the First
World War; the fall of the Berlin Wall; colonialism; the Ottoman Empire; the Black Death; the
invention of printing; the space race; the moon landing; Mars exploration; satellites; telescopes;
volcanoes; earthquakes; hurricanes; coral reefs; rainforests; deserts; glaciers; the Great Barrier
Reef; wolves; bees; octopuses; whales; migration of birds; dinosaurs; mushrooms; inflation; supply
and demand; interest rates; the stock market; index funds; taxes; unemployment; international
trade; monopolies; cryptocurrency; blockchain; budgeting; mortgages; insurance; starting a
business; marketing; negotiation; leadership; remote work; job interviews; project management;
agile development; time management; procrastination; habits; motivation; friendship; parenting;
education systems; learning a language; public speaking; writing essays; reading fiction; poetry;
Shakespeare; science fiction; detective novels; mythology; Greek philosophy; Stoicism;
existentialism; utilitarianism; ethics of artificial intelligence; free will; consciousness;
logic; paradoxes; democracy; constitutions; human rights; elections; the United Nations;
immigration; urban planning; public transport; architecture; bridges; skyscrapers; music theory;
jazz; classical music; guitar; piano; painting; impressionism; photography; film making;
animation; theatre; dance; fashion; cooking pasta; baking bread; fermentation; coffee; tea;
chocolate; cheese; vegetarian food; spices; gardening; composting; houseplants; hiking; camping;
cycling; running a marathon; swimming; chess; football; basketball; tennis; the Olympic Games;
video games; board games; tourism in Italy; travelling in Japan; life in Iceland; the Amazon
river; the Himalayas; the Sahara; oceans; lighthouses; sailing ships; trains; aeroplanes; drones;
robots; machine learning; neural networks; large language models; search engines; databases;
operating systems; compilers; the internet; encryption; passwords; computer viruses; open source
software; cloud computing; web browsers; mobile phones; social media; online privacy; data
science; statistics; probability; calculus; linear algebra; geometry; prime numbers; infinity;
graph theory; game theory; cryptography; recursion; sorting algorithms; hash tables; binary trees;
version control; testing software; code review; design patterns; object oriented programming;
functional programming; concurrency; APIs; microservices; containers; networking; debugging; user
interfaces; accessibility; colour theory; typography; paper making; glass; steel; concrete; wood
working; sewing; knitting; pottery; toys; clocks; calendars; time zones; maps; weather forecasts;
rainbows; tides; the moon; eclipses; comets; the Milky Way; the Big Bang; dark matter; alien life;
memory; dreams; emotions; humour; lying; curiosity; creativity; boredom; happiness; grief;
courage; patience; trust; fairness; poverty; hunger; clean water; recycling; plastic waste;
biodiversity; farming; bread prices; fishing; forests
""")

QUESTIONS = listed("""
What is {s}?; Explain {s} to a ten-year-old.; Explain {s} in simple terms.; How does {s} affect
our daily life?; What are the most important facts about {s}?; Give me a short introduction to
{s}.; Why does {s} matter?; What are common misconceptions about {s}?; Write a paragraph about
{s}.; Summarize what is known about {s} in three sentences.; List five interesting facts about
{s}.; What are the advantages and disadvantages of {s}?; Describe the history of {s}.; What
questions should I ask an expert on {s}?; Write an outline for an essay about {s}.; Write a short
blog post about {s}.; Compare {s} and {o}.; How is {s} related to {o}?; What can {o} teach us
about {s}?; Make a quiz with four questions about {s} and give the answers.; Write a haiku about
{s}.; Write a poem about {s} with three stanzas.; Tell me a short story in which {s} plays a
role.; Write a dialogue between a teacher and a student about {s}.; Give three arguments for and
three against spending public money on {s}.; What would the world be like without {s}?; Create a
lesson plan about {s} for a class of teenagers.; Write a speech opening on the subject of {s}.;
Suggest ten titles for an article on {s}.; Which books or films deal with {s}?; Explain step by
step how somebody could learn about {s} in a month.; What is the future of {s}?; Write an email to
a friend in which you explain why you are interested in {s}.; Define {s} and give two examples.;
Give an analogy that makes {s} easy to understand.; What are the key terms one needs to talk about
{s}?; Make a table that compares {s} with {o}.; Write a tweet about {s}.; Write a newspaper
headline and a first paragraph about {s}.; Discuss {s} from an economic and from a social point of
view.; Describe {s} as if you were a pirate.; Pretend you are a professor and explain {s} to a
sceptical audience.; What surprised scientists about {s}?; Give me a one-sentence summary of {s}.;
Answer in detail: how does {s} work?; I have to give a talk about {s}. How should I structure it?;
Convince me that {s} is worth my time.; What mistakes do beginners make when they deal with {s}?;
Write an introduction to a podcast episode on {s}.; Which three people shaped {s}, and how?;
Explain the connection between {s}, {o} and everyday choices.; Write a product description for a
museum shop gift that celebrates {s}.; Write a limerick about {s}.; Write JSON with the fields
title, summary and keywords for an article about {s}.
""")

FOLLOW_UPS = listed("""
Can you make that shorter?; Give me an example.; Rewrite it for a younger audience.; Why is that
so?; Turn your answer into a bullet list.; Summarize your answer in one sentence.; What is the
most important point, and why?; Now write it in a more formal tone.; Can you explain the second
point in more detail?; Translate your answer into simple English.; Give a counterargument.; Are
you sure? Check your answer again.; Add two more items.; What should I read next?; Rephrase it
without using any technical words.; Now do the same as a dialogue.; Make it funnier.; How could
this be applied in practice?; What are the exceptions?; Thank you! Now give me three questions to
test my understanding.
""")

CODE_FOLLOW_UPS = listed("""
Can you add comments to the code?; What is its time complexity?; Rewrite it without using any
library.; Add error handling for invalid input.; Write unit tests for it.; Now make it faster.;
Explain the code line by line.; Rewrite it using recursion.; Use type hints.; How would you do the
same in JavaScript?; Give an example of how it is called.; Is there a bug for empty input? Fix it
if so.; Rename the variables so that they are clearer.; Turn it into a class.; Shorten it as much
as possible.
""")

PEOPLE = listed("""
my boss; a colleague; my neighbour; a customer; my landlord; an old friend; my teacher; a
recruiter; the city council; my sister; a hotel; an airline; my doctor; the support team of an
online shop; my football coach; a journalist; an investor; our new intern; my grandmother; a
professor
""")

OCCASIONS = listed("""
asking for a day off; thanking them for their help; apologising for being late; inviting them to a
birthday party; complaining about noise; asking for a refund; proposing a meeting next Tuesday;
declining an offer politely; announcing that I will move to another city; asking for a
recommendation letter; reminding them of a deadline; congratulating them on a new job; reporting a
broken heating; asking for feedback on my draft; cancelling a reservation; suggesting a new idea
for the team; explaining why a project is delayed; asking how they have been; offering help with a
move; requesting more information about a course
""")

ROLES = listed("""
a medieval knight; a friendly robot; a weather presenter; a time traveller from 2200; a strict
librarian; an astronaut on the moon; a tour guide in Rome; a detective; a football commentator; a
cat; a ship's captain; a chef in a busy kitchen; a wise old tree; a startup founder; a science
teacher; a ghost in an old castle; a shopkeeper in a fantasy village; a jazz musician; a sports
coach; a job interviewer
""")

TASKS_OF_ROLES = listed("""
Introduce yourself.; Tell me about your day.; Give me advice on how to deal with failure.;
Describe the place where you live.; Answer my question: what is the meaning of life?; Explain what
you think of smartphones.; Tell me a joke.; Describe your favourite meal.; Give a short speech to
your friends.; Tell me what you are afraid of.; Describe how you would spend a rainy Sunday.;
Teach me one thing that you know well.
""")

PLANS = listed("""
a weekend in Paris; a birthday party for a six-year-old; a week of healthy meals; a small
vegetable garden; a study schedule for final exams; a home workout without equipment; a move to a
new flat; a team offsite for twelve people; a camping trip with children; a budget for a student;
a book club; a morning routine; a website for a bakery; a charity run; a first visit to the opera;
a road trip along the coast; learning to play the ukulele; a job search; a surprise dinner; spring
cleaning; a science fair project; a podcast; a rainy day indoors; a long flight with a baby; a
neighbourhood party
""")

ASKED_PLANS = listed("""
Make a plan for {s}.; Give me a checklist for {s}.; What do I need for {s}?; What could go wrong
with {s}, and how can I prepare?; Write a day-by-day schedule for {s}.; Suggest five creative
ideas for {s}.; How much would {s} cost? Give an estimate with its parts.; Write a message to my
friends that announces {s}.; Give me ten tips for {s}.
""")

PASSAGES = listed(
    """
The old mill at the edge of the village had not turned for thirty years. Children said that it was
haunted, but Marta knew better: behind the rotten door lived a family of owls, and a clockmaker
who did not like visitors.
---
Our company was founded in 2009 by Lena Hoff and Peter Adeyemi in Rotterdam. It employs 240
people, makes sensors for greenhouses, and last year had a revenue of 31 million euros, 12 percent
more than the year before.
---
Yesterday at 7:45 a lorry overturned on the A12 near Millbrook. Nobody was hurt, but eight tonnes
of tomatoes covered the road. Police closed it until noon. Drivers were asked to take the old
bridge instead.
---
Researchers at a university in Oslo gave 120 volunteers a daily puzzle for six weeks. Those who
solved it in the morning slept better than those who solved it at night. The authors warn that the
effect was small.
---
The new phone has a bright screen and a battery that lasts two days. Its camera is disappointing
in the dark, and at 899 dollars it costs more than most of its rivals. Still, I would buy it again
for its size alone.
---
Dear team, the meeting on Thursday moves from 10:00 to 14:30 and takes place in room B2. Please
bring the numbers for March. Sofia will present the plan for the Lisbon office. Lunch is not
provided. Kind regards, Omar
---
Salt was once so valuable that soldiers were paid in it. Cities grew rich along the roads on which
it travelled. When refrigeration came, its price fell, and today we scatter it on winter roads
without a thought.
---
Ingredients: 300 g flour, 2 eggs, 150 ml milk, a pinch of salt. Mix everything, let the dough rest
for half an hour, press it through a coarse sieve into boiling water, and take the noodles out
when they float.
---
I bought this lamp in May and it broke after three weeks. The support answered only after my third
message and then asked me to pay for the return. The light itself was lovely. I will not order
from this shop again.
---
The river rises in the mountains of the north, flows past four towns and reaches the sea after 310
kilometres. In spring it carries three times as much water as in autumn. Its delta is home to more
than 200 kinds of birds.
---
Nadia is taller than Tom but shorter than Ines. Tom is older than both of them. Ines plays the
violin on Mondays and Fridays, Nadia the drums every evening, and Tom has sold his piano to a
school in Leeds.
---
The committee agreed to plant 400 trees along the canal before November. Ms Okafor voted against
it, because the roots could harm the walls. The work will be done by Greenline Ltd and cost 58,000
pounds.
---
At first the robot could only sort red blocks. After a week of training it told eleven shapes
apart, and dropped one in fifty. The engineers were less proud of that than of the cable that no
longer tangled.
---
It rained for nine days. On the tenth, the baker opened her window and saw that the square had
become a lake, and that somebody had tied a small blue boat to the door of the town hall.
""",
    between="---",
)

OF_PASSAGES = listed("""
Summarize the following text in one sentence.; Summarize the text below in three bullet points.;
Extract all names and numbers from the text as JSON.; Rewrite this text in simpler words.; Correct
the style of this text and make it more vivid.; What is the main idea of this passage?; Give this
text a title.; Translate the following text into French.; Translate the following text into
Spanish.; Rewrite the text as a conversation.; Write three questions about this text, with
answers.; Is the tone of this text positive, negative or neutral? Explain.; Continue this text
with another paragraph.; Rewrite the text in the past tense, from the view of somebody who was
there.; List every event in the text in order.; Repeat the text exactly, but replace every number
by the word MANY.; Return the text with every full stop replaced by an exclamation mark.; Copy the
text and put each sentence on a line of its own.; Turn this into a formal report.; Shorten this
text by half and keep the facts.
""")

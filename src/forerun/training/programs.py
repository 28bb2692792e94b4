"""What packaged prompts ask programmers for. Written for this purpose."""

from forerun.training.topics import listed

LANGUAGES = ("Python", "Python", "Python", "JavaScript", "Java", "C++", "Go", "Rust", "TypeScript")

TASKS = listed("""
reads a CSV file and prints the average of each column; downloads a web page and counts its links;
renames all files in a folder to lower case; finds duplicate files by their hash; converts
temperatures between Celsius and Fahrenheit; implements a stack with push, pop and peek;
implements a queue with two stacks; implements a linked list with insert, delete and search;
reverses a linked list; merges two sorted lists; implements binary search; implements quicksort;
implements merge sort; implements a priority queue; implements an LRU cache; finds the shortest
path in a maze; does a breadth-first search in a graph; does a depth-first search in a graph;
detects a cycle in a directed graph; computes a topological order; builds a binary search tree and
prints it in order; checks whether a tree is balanced; computes the edit distance of two words;
finds the longest common subsequence; solves the knapsack problem; counts the words in a text
file; prints the ten most frequent words; validates an email address; parses a date in ISO format;
computes the number of days between two dates; generates a random password; encrypts a text with a
Caesar cipher; decodes Morse code; converts numbers to Roman numerals; converts integers to binary
without library functions; checks whether a number is prime; prints the prime factors of a number;
computes the greatest common divisor; prints Pascal's triangle; solves a quadratic equation;
multiplies two matrices; transposes a matrix; rotates an image stored as a grid by 90 degrees;
plays tic-tac-toe on the console; plays a number guessing game; simulates the game of life;
simulates a bank account with deposit and withdrawal; keeps a list of tasks in a JSON file;
implements a small calculator for expressions with parentheses; tokenizes arithmetic expressions;
checks whether brackets are balanced; compresses a string by run lengths; finds all permutations
of a string; finds all subsets of a list; groups words that are anagrams; finds the first
character that does not repeat; removes vowels from a text; wraps text at a given width; formats a
table with aligned columns; logs messages with a time stamp; retries a function that may fail;
limits how often a function may be called; measures how long a function takes; caches the results
of a function; starts several threads and waits for them; serves a hello world page over HTTP;
queries a REST API and prints the result; reads a configuration file with default values; parses
command line arguments; draws a bar chart of some numbers; fits a line to points by least squares;
computes mean, median and standard deviation; normalizes a list of numbers; implements k-means
clustering; implements a perceptron; computes a moving average; splits a list into chunks;
flattens nested lists; inverts a dictionary; merges dictionaries by summing values; sorts records
by several keys; finds the second largest number; finds the majority element; rotates an array by
k places; moves zeros to the end; finds pairs that sum to a target; finds the maximum sum of a
subarray; finds missing numbers in a sequence; counts islands in a grid; fills a region of a grid;
checks a Sudoku solution; solves the N queens problem; generates valid parentheses; implements a
trie for autocompletion; evaluates a polynomial; converts between number bases; simulates rolling
dice and shows the distribution; estimates pi by random points; keeps a phone book with search;
models a library with books and members; models shapes with an area method; implements an event
emitter; implements a state machine for a traffic light; reverses the words of a sentence; checks
whether two words rhyme by their endings; converts snake case to camel case; counts lines of code
in a project; watches a folder for changes; sends an email with an attachment; resizes images in a
folder; merges two sorted files; finds the median of a stream of numbers
""")

ASKED = listed("""
Write a {l} function that {t}.; Write a {l} program that {t}.; Write a {l} script that {t}.
Explain how it works.; How can I write {l} code that {t}?; Give me {l} code that {t}, with
comments.; I need a {l} function that {t}. Keep it short.; Write a {l} class that {t} and show how
it is used.; Write {l} code that {t}, and add tests.; Show two different ways to write a {l}
function that {t}, and compare them.; Explain step by step how one would write a {l} program that
{t}, then write it.; My homework is a {l} function that {t}. Please help me.; Write clean, well
documented {l} code that {t}. Handle errors.
""")

PROPERTIES: tuple[tuple[str, str, str, str], ...] = (
    ("even numbers", "even", "x % 2 == 0", "[3, 8, 5, 12, 7]"),
    ("odd numbers", "odd", "x % 2 == 1", "[4, 9, 10, 11]"),
    ("negative numbers", "negative", "x < 0", "[-3, 4, 0, -8]"),
    ("positive numbers", "positive", "x > 0", "[5, -1, 0, 2]"),
    ("multiples of three", "multiples_of_three", "x % 3 == 0", "[3, 7, 9, 14]"),
    ("multiples of seven", "multiples_of_seven", "x % 7 == 0", "[14, 15, 21]"),
    ("prime numbers", "primes", "is_prime(x)", "[2, 4, 11, 15]"),
    ("square numbers", "squares", "is_square(x)", "[1, 3, 16, 20]"),
    ("numbers greater than their neighbours", "peaks", "peak", "[1, 5, 2, 8, 3]"),
    ("numbers that occur more than once", "repeated", "count > 1", "[1, 2, 2, 5, 1]"),
    ("numbers with an even digit sum", "even_digit_sums", "digits", "[11, 12, 20]"),
    ("numbers between ten and one hundred", "two_digit", "10 <= x < 100", "[5, 40, 100]"),
    ("words that start with a vowel", "vowel_words", "word", "['apple', 'tree', 'owl']"),
    ("words longer than four letters", "long_words", "len", "['house', 'cat', 'river']"),
    ("palindromes", "palindromes", "word", "['level', 'stone', 'noon']"),
    ("words that contain a digit", "words_with_digits", "word", "['a1', 'bc', 'd22']"),
    ("words in upper case", "upper_words", "word", "['NASA', 'moon', 'USA']"),
    ("words that end in 'ing'", "ing_words", "word", "['sing', 'walk', 'ring']"),
    ("empty strings", "empty_strings", "word", "['', 'a', '']"),
    ("strings with balanced brackets", "balanced", "word", "['()', '(]', '[()]']"),
    ("strings without repeated letters", "distinct_letters", "word", "['abc', 'moon', 'dig']"),
    ("pairs whose sum is even", "even_pairs", "pair", "[(1, 3), (2, 5), (4, 4)]"),
    ("intervals that are longer than five", "long_intervals", "pair", "[(0, 9), (2, 4)]"),
    ("points on the diagonal", "diagonal_points", "pair", "[(1, 1), (2, 3)]"),
    ("dictionaries that have the key 'name'", "named", "record", "[{'name': 'Ada'}, {}]"),
    ("lists that are sorted", "sorted_lists", "list", "[[1, 2], [3, 1]]"),
    ("leap years", "leap_years", "year", "[1999, 2000, 2012]"),
    ("valid times in the form HH:MM", "valid_times", "word", "['12:30', '25:00']"),
)

OPERATIONS: tuple[tuple[str, str, str], ...] = (
    ("count_{n}", "int", "Return how many {p} the list contains."),
    ("keep_{n}", "list", "Return a new list with only the {p}, in their original order."),
    ("remove_{n}", "list", "Return a new list without the {p}."),
    ("first_of_{n}", "object", "Return the first of the {p}, or None if there are none."),
    (
        "last_index_of_{n}",
        "int",
        "Return the index of the last of the {p}, or -1 if there are none.",
    ),
    ("has_{n}", "bool", "Return True if the list contains any {p}."),
    ("all_{n}", "bool", "Return True if the list consists of {p} and nothing else."),
    ("split_by_{n}", "tuple", "Return two lists: the {p}, and everything else."),
    ("longest_run_of_{n}", "int", "Return the length of the longest run of consecutive {p}."),
    ("every_second_of_{n}", "list", "Return every second one of the {p}, starting with the first."),
    ("positions_of_{n}", "list", "Return the indices at which there are {p}."),
    ("sort_{n}", "list", "Sort the {p} in ascending order, leaving all other elements in place."),
    ("share_of_{n}", "float", "Return the share of {p} among all elements; 0.0 for an empty list."),
    ("move_{n}_to_front", "list", "Return a list with the {p} first, keeping the order otherwise."),
)

STUBS = (
    "{code}",
    "Complete the following Python function:\n\n```python\n{code}```",
    "Complete this function.\n\n{code}",
    "Please finish the code below. Return only the complete function.\n\n{code}",
    "Write a solution to the following problem and make sure that it passes the example:\n"
    "```python\n{code}```",
    "Implement the function according to its docstring:\n\n{code}",
    "Here is a function without a body:\n```\n{code}```\nFill in the body and explain it briefly.",
)

SNIPPETS: tuple[tuple[str, str, str], ...] = (
    (
        "total",
        "amount",
        """\
def total(items):
    result = 0
    for item in items:
        result += item.price * item.count
    return result
""",
    ),
    (
        "Account",
        "Wallet",
        """\
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError('amount must be positive')
        self.balance += amount

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError('not enough money')
        self.balance -= amount
""",
    ),
    (
        "word",
        "token",
        """\
import re
from collections import Counter


def frequent(text, n):
    words = re.findall(r'[a-z]+', text.lower())
    counts = Counter(word for word in words if len(word) > 2)
    return counts.most_common(n)
""",
    ),
    (
        "queue",
        "waiting",
        """\
from collections import deque


def distances(graph, start):
    seen = {start: 0}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for other in graph[node]:
            if other not in seen:
                seen[other] = seen[node] + 1
                queue.append(other)
    return seen
""",
    ),
    (
        "path",
        "location",
        """\
import json
from pathlib import Path


def load(path, default=None):
    path = Path(path)
    if not path.exists():
        return default
    with path.open() as file:
        return json.load(file)


def save(path, data):
    Path(path).write_text(json.dumps(data, indent=2))
""",
    ),
    (
        "left",
        "low",
        """\
def search(values, wanted):
    left, right = 0, len(values) - 1
    while left <= right:
        middle = (left + right) // 2
        if values[middle] == wanted:
            return middle
        if values[middle] < wanted:
            left = middle + 1
        else:
            right = middle - 1
    return -1
""",
    ),
    (
        "user",
        "member",
        """\
function greet(user) {
  if (!user || !user.name) {
    return 'Hello, stranger!';
  }
  const hour = new Date().getHours();
  const part = hour < 12 ? 'morning' : 'evening';
  return `Good ${part}, ${user.name}!`;
}
""",
    ),
    (
        "Point",
        "Vector",
        """\
from dataclasses import dataclass


@dataclass
class Point:
    x: float
    y: float

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def length(self):
        return (self.x ** 2 + self.y ** 2) ** 0.5
""",
    ),
    (
        "rows",
        "lines",
        """\
def table(rows):
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows)]
    for row in rows:
        cells = [str(cell).ljust(width) for cell, width in zip(row, widths)]
        print(' | '.join(cells))
""",
    ),
    (
        "cache",
        "memory",
        """\
def fibonacci(n, cache={}):
    if n < 2:
        return n
    if n not in cache:
        cache[n] = fibonacci(n - 1) + fibonacci(n - 2)
    return cache[n]
""",
    ),
    (
        "server",
        "service",
        """\
[server]
host = 127.0.0.1
port = 8080
workers = 4

[database]
server = localhost
name = shop
timeout = 30
""",
    ),
    (
        "price",
        "cost",
        """\
{
  "name": "Desk lamp",
  "price": 39.9,
  "tags": ["light", "office"],
  "stock": {"berlin": 12, "paris": 0},
  "old_price": 49.9
}
""",
    ),
)

EDITS = listed("""
Rename {a} to {b} everywhere in this code and return the whole file.; Return this file with {a}
renamed to {b}.; Add a docstring or comment to each function of this code.; Find possible bugs in
this code.; Explain what this code does.; Add type hints to this code.; Rewrite this code in a
more compact way.; Translate this code to JavaScript.; Write tests for this code.; Add logging to
this code and return all of it.; Return this code unchanged, except that the name {a} becomes
{b}.; Review this code like a senior engineer.; Change the indentation to two spaces and return
the full code.; What happens if the input is empty? Change the code so that it copes.; Copy the
following code exactly, then add an example of its use.; In the following code, replace {a} by
{b}. Show the complete result.
""")

SUMS = listed("""
What is {a} plus {b}?; What is {a} times {b}?; Compute {a} - {b} and explain each step.; A shop
sells {a} apples at {b} cents each. How much money does it take?; {n} has {a} marbles and gives
away {b}. How many are left?; A train travels {a} kilometres in {b} minutes. What is its average
speed?; Solve for x: {b}x + {a} = {c}.; What is {b} percent of {a}?; The sides of a rectangle are
{a} and {b}. Compute its area and its perimeter.; {n} saves {b} dollars a week. How many weeks
until there are {a} dollars?; Is {a} divisible by {b}? Show why.; Find the greatest common divisor
of {a} and {b}.; If {b} workers need {a} hours, how long do twice as many need? Think step by
step.; Write {a} as a product of primes.; The average of two numbers is {a}, one of them is {b}.
What is the other?; A class of {b} pupils collected {a} bottles. How many is that each?; What is
the remainder when {a} is divided by {b}?; {n} is {b} years old, and her father is three times as
old. How old will he be in {c} years?; Round {a} to the nearest ten, and double it {b} times.; A
jar holds {a} red and {b} blue balls. What is the probability of drawing a red one?
""")

NAMES = ("Anna", "Ben", "Chidi", "Dana", "Elif", "Felix", "Grace", "Hugo", "Iris", "Jonas")

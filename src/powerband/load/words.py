"""English-like text to make prompts of: common words, most of them one token in every current vocabulary."""

import numpy as np

_TEXT = """
    the of and to in is that for it as was with be by on not he his but at are this have from or had they you were
    her she there would their we him been has when who will more no if out so said what up its about into than them can
    only other new some could time these two may then do first any my now such like our over man me even most made after
    also did many before must through back years where much your way well down should because each just those people how
    too little state good very make world still own see men work long get here between both life being under never day
    same another know while last might us great old year off come since against go came right used take three himself
    few house use during without again place around however home small found thought went say part once general high
    upon school every does got united left number course war until always away something fact water though less public
    put think almost hand enough far took head yet government system better set told nothing night end why called eyes
    find going look asked later point knew next program city business give group toward young days let room word present
    side social given several order national second possible rather per face among form important often things looked
    early white case large big need four within felt children along saw best church ever least power light thing
    seemed family interest want members mind country area others done turned although open service certain kind
    problem began different door thus help sense means whole matter
"""
WORDS: tuple[str, ...] = tuple(_TEXT.split())


def english_like(count: int, rng: np.random.Generator) -> str:
    """``count`` words in sentences; frequent words come first in the list and are drawn more often."""
    ranks = np.arange(1, len(WORDS) + 1)
    weights = 1 / (ranks + 10.0)
    drawn = rng.choice(len(WORDS), count, p=weights / weights.sum())
    sentences: list[str] = []
    at = 0
    while at < count:
        length = int(rng.integers(6, 20))
        sentence = " ".join(WORDS[i] for i in drawn[at : at + length])
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
        at += length
    return " ".join(sentences)

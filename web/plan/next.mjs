// The panel's part about the next run: its memory and time, as the open workflow's nodes show them, too.

import { element } from '../elements.mjs'
import { makeFold, setShown } from '../panel/dom.mjs'
import { getFileName } from '../panel/format.mjs'
import { t } from '../text.mjs'
import { draw, makeBrief, makePlanned } from './view.mjs'

export class NextView {
  constructor() {
    this.runs = element('div', { class: 'paralleldit-next' })
    this.element = makeFold(t('panel.next'), true, this.runs).element
    this.element.dataset.testid = 'paralleldit-next'
    this.drawn = []
  }

  update(_group, { runs }) {
    setShown(this.element, runs.length)
    const isDrawn = ({ answer, models }, place) =>
      answer === this.drawn[place]?.answer && `${models}` === `${this.drawn[place].models}`
    if (runs.length === this.drawn.length && runs.every(isDrawn)) return
    this.drawn = runs
    this.runs.replaceChildren(...runs.map(makeRun))
  }
}

function makeRun({ answer, models, isPlanned }) {
  const names = [...new Set(models)].map(getFileName).join(', ')
  const name = element('p', { class: 'paralleldit-strong paralleldit-cut-off', title: models.join(', ') }, names)
  const content = element('div', { class: 'paralleldit-plan-content' })
  draw(content, answer, [], isPlanned ? makePlanned : makeBrief)
  return element('div', {}, name, element('div', { class: 'paralleldit-plan' }, content))
}

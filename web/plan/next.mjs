// In the panel: what the next run will need and take, as the plan of the open workflow's loader says it, too.

import { element } from '../elements.mjs'
import { fold, shown } from '../panel/dom.mjs'
import { fileName } from '../panel/format.mjs'
import { t } from '../text.mjs'
import { brief, draw, planned } from './view.mjs'

export class NextView {
  constructor() {
    this.runs = element('div', { class: 'paralleldit-next' })
    this.element = fold(t('panel.next'), true, this.runs).element
    this.element.dataset.testid = 'paralleldit-next'
    this.drawn = []
  }

  update(_group, { runs }) {
    shown(this.element, runs.length)
    const isDrawn = ({ answer, models }, place) =>
      answer === this.drawn[place]?.answer && `${models}` === `${this.drawn[place].models}`
    if (runs.length === this.drawn.length && runs.every(isDrawn)) return
    this.drawn = runs
    this.runs.replaceChildren(...runs.map(about))
  }
}

function about({ answer, models, isPlanned }) {
  const names = [...new Set(models)].map(fileName).join(', ')
  const name = element('p', { class: 'paralleldit-strong paralleldit-cut-off', title: models.join(', ') }, names)
  const content = element('div', { class: 'paralleldit-plan-content' })
  draw(content, answer, [], isPlanned ? planned : brief)
  return element('div', {}, name, element('div', { class: 'paralleldit-plan' }, content))
}
